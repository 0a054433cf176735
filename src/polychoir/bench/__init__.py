"""Loads, and what came of them: the engine alone, or any OpenAI-compatible server."""
