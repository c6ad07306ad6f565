"""The bindings of NVIDIA's libraries, by ctypes. Independent of nets."""
