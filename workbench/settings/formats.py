"""Names of the page formats, and which of them share a property."""

# by family; what each one is: kernels/kvkernels/formats
KV_FORMATS = (
    "bf16", "fp32", "fp8_e4m3", "fp8_e4m3_head", "fp8_e4m3_token", "fp8_e5m2", "fp8_e5m2_head",
    "fp8_e5m2_token", "int8", "int4",
    "int4_rotated", "int3", "int2", "nvfp4", "turbo4", "turbo3", "kivi4", "kivi3", "kivi2",
    "kvquant4", "kvquant3", "kvquant2", "lowrank", "lowrank_int4",
)  # fmt: skip
KVQUANT_FORMATS = ("kvquant4", "kvquant3", "kvquant2")
CALIBRATED_FORMATS = (*KVQUANT_FORMATS, "lowrank", "lowrank_int4")
PRE_ROPE_FORMATS = CALIBRATED_FORMATS  # their keys are stored as projected, and rotated at read
LOW_RANK_FORMATS = ("lowrank", "lowrank_int4")
GROUPED_FORMATS = ("kivi4", "kivi3", "kivi2")  # numbers of several tokens share their scale
KIVI_GROUPS = (0, 8, 16, 32, 64)  # tokens of K, channels of V; 0: as many of 32 as divide the page
