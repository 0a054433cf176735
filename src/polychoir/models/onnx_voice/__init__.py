"""One-shot voices that run in ONNX Runtime: one forward turns a whole chunk into samples."""
