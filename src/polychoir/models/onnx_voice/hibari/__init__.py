"""The embedded voice: English, from the installed package hibari-tts, with nothing to download."""
