"""`polychoir doctor`: what this machine is, and what each model will do on it, without serving anything."""
