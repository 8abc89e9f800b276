"""Figures of the papers: of losses, logits and activation maps."""
