"""VITS voices as Piper exports them: an .onnx file with a real batch dimension and its .onnx.json."""
