"""The module that is traced: its mode, its state, and the tensors that nn.Module does not see."""
