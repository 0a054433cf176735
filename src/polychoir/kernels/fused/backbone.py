"""The fused forms of what a backbone does in each layer: see models/omnivoice/network.Ops."""

from polychoir.kernels.fused.pointwise import add_norm_, embed_norm, qk_norm_rope_
from polychoir.kernels.fused.product import gated_product

__all__ = ["add_norm_", "embed_norm", "gated_product", "qk_norm_rope_"]
