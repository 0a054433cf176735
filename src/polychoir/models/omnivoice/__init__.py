"""OmniVoice: masked diffusion over audio codes (arXiv 2604.00688), batched at the level of the step.

Text side, free of torch: row, prompt, length, timetable, design, languages, reference, frontend, plugin,
model, config, checkpoint. Device side: network, codec. The step itself is in `polychoir.runner`.
"""
