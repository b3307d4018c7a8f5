"""An attack, an aggregation rule and a metric for fedglass, in a package of their own."""
