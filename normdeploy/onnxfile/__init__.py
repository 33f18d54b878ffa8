"""An ONNX file and the data beside it, read once: where its weights lie, what their digests are, a copy of all of it.

The tensors of a model may keep their data in other files ("external data"): the initializers, those of bodies and
functions, and constants in attributes. A file's word for where is not to be trusted: data is read from the model's
folder alone, from regular files that are long enough. One thing reads them all, so that what is judged, digested,
copied and run is the same.

The model's folder is the one the path names and, where the path is a link, the one the file lies in: caches of
downloaded models link to files that lie side by side elsewhere.
"""
