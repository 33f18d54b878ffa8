"""Room: web. onnxruntime-web: which release, where it comes from, and its sessions in a headless browser.

``release`` finds the release that was tested and checks its bytes, ``browser`` starts Chromium and speaks with it,
``server`` hands files and tensors over on this machine alone, ``host`` puts the three together for one piece of work,
``session`` is a session of the runtime there with the face of one of onnxruntime's own.
"""
