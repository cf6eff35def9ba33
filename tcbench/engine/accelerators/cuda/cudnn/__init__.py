"""cuDNN 9: graphs and their plans through its frontend, the older batch normalisation calls through ctypes.

Nothing here imports cuDNN or CuPy before it is used, so that every module can be imported anywhere."""
