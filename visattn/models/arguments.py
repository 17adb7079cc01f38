"""Arguments of ``timm.create_model`` that say where weights come from or go to, not what a network is."""

ORIGIN = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "checkpoint_path", "cache_dir")
PLACEMENT = ("device", "dtype")
