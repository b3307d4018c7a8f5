"""Papers that several packages cite; any other citation stands beside what it is the source of."""

from __future__ import annotations

DLG = "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935"
IDLG = "Zhao, Mopuri, Bilen: iDLG: Improved Deep Leakage from Gradients, 2020, https://arxiv.org/abs/2001.02610"
DLFA = (
    "Dimitrov, Balunović, Konstantinov, Vechev: Data Leakage in Federated Averaging, TMLR 2022, "
    "https://openreview.net/forum?id=e7A0B99zJf"
)
SME = "Zhu, Yao, Blaschko: Surrogate Model Extension (SME), ICML 2023, https://arxiv.org/abs/2306.00127"
MALICIOUSLY_CURIOUS_CLIENT = (
    "Yue, Jin, Wong, Dai: Byzantine Outside, Curious Inside: Reconstructing Data Through Malicious Updates, 2025, "
    "https://arxiv.org/abs/2506.11413"
)
CURIOUS_CLIENT = (
    "Wilson, Yue, Wong, Dai: Federated Learning Nodes Can Reconstruct Peers' Image Data, 2024, "
    "https://arxiv.org/abs/2410.04661"
)
