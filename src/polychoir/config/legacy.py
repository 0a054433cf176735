"""Names of two older servers for OmniVoice, whose users may arrive with their environment unchanged.

Most of their names are settings or aliases of ours and are looked up there; this table holds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

LEGACY_PREFIX = "OMNIVOICE_"

RENAMED: Mapping[str, str] = {"workers": "api_workers"}
"""Names that mean something else there than here."""

NO_WEIGHT = "chunking here has no such weight"
TOKEN_BUCKETS = "buckets are token counts here, not widths"
OWN_PROCESS = "there is no separate inference server to address"
METRICS = "metrics are Prometheus snapshots without shared memory"

MEANINGLESS: Mapping[str, str] = {
    "cuda_graph_min_width": TOKEN_BUCKETS,
    "cuda_graph_max_width": TOKEN_BUCKETS,
    "cuda_graph_auto_width_tokens_per_word": TOKEN_BUCKETS,
    "cuda_graph_auto_max_width": TOKEN_BUCKETS,
    "text_chunk_soft_overflow_ratio": NO_WEIGHT,
    "text_chunk_same_sentence_penalty": NO_WEIGHT,
    "text_chunk_sentence_boundary_penalty": NO_WEIGHT,
    "text_chunk_fragment_boundary_penalty": NO_WEIGHT,
    "text_chunk_short_underfill_ratio": NO_WEIGHT,
    "text_chunk_short_underfill_penalty": NO_WEIGHT,
}
"""Accepted from every source with a notice, because there is nothing left for them to set."""

MEANINGLESS_ENVIRONMENT: Mapping[str, str] = {
    **MEANINGLESS,
    "attn_backend": "the attention kernel follows the device",
    "audio_chunk_duration": "chunk lengths are the model's own",
    "audio_chunk_threshold": "chunk lengths are the model's own",
    "clone_prompt_shared_cache_dir": "encoded prompts stay in memory",
    "cors_allow_credentials": "keys travel in headers, never in cookies",
    "default_voice": "`auto` is the model's own choice",
    "default_voice_instructions": "`auto` is the model's own choice",
    "detect_no_speech": "there is no such switch",
    "infer_host": OWN_PROCESS,
    "infer_port": OWN_PROCESS,
    "infer_start_timeout_s": OWN_PROCESS,
    "inferer_kind": OWN_PROCESS,
    "inferer_name": OWN_PROCESS,
    "inferers": OWN_PROCESS,
    "log_level": "the log has one level",
    "log_retention_days": "rotation is left to the system",
    "max_ref_audio_mb": "reference clips have a fixed bound",
    "max_sse_audio_b64_chars": "event sizes are fixed",
    "metrics_shm_path": METRICS,
    "metrics_shm_size": METRICS,
    "metrics_snapshot_interval_s": METRICS,
    "min_speech_ratio": "there is no such switch",
    "model_cache_dir": "the hub's own cache is used; HF_HOME moves it",
    "profile_dir": "stored voices live under data_dir",
    "sample_rate": "every answer is 24 kHz unless the request says otherwise",
    "seed": "a seed belongs to a request",
    "stream_chunk_max_chars": "chunk lengths are the model's own",
    "stream_overlap": "chunks always overlap",
    "voice_dir": "stored voices live under data_dir",
    "web_ui": "there is no such switch",
}
"""OMNIVOICE_ names that are read past with a notice each."""
