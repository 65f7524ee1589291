"""Which device computes: KV heads, layers and experts spread over ranks (CDO).

placement   which KV heads, layers and experts lie on which rank
workers     one process a rank, a pipe to each, a clear end whatever happens
links       torch.distributed with every byte counted and every second in it timed
shards      a rank's share of the weights as a decoder; moe, pipeline: the other two ways to share
rank_cache  the paged KV cache of a rank's own heads and layers
group       DeviceGroup: prefill, decode and greedy text on all ranks, and a DeviceReport
"""
