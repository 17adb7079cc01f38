"""Arguments of ``timm.create_model`` that say where a network goes, not what it is."""

PLACEMENT = ("device", "dtype")
