"""The simulated cluster: exact times, nothing lost or given twice, published figures."""
