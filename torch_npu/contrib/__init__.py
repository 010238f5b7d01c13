"""Helps for programs that were written for another device: :mod:`torch_npu.contrib.transfer_to_npu`."""
