"""Routers in the writer: C functions only (routes.pxd); the engine's door to them is in engine_core.pyi."""
