"""KV-centric scheduling (KVS): which tokens run in the next step."""
