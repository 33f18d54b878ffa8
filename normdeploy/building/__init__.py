"""The steps of ``normdeploy build``: training, export, measuring, quantizing; what they read and write."""
