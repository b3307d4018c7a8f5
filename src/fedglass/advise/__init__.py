"""Advice on defences: which one, at which strength, meets the gate at the best accuracy?

`chains` reads what a plan compares, `search` chooses strengths, `tried` holds what the audit of a strength measured,
`run` audits one strength after another and checks the best, `page` and `plan_file` write the answer.
"""
