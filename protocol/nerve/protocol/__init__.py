"""What crosses the wall between Brain and Hands: values, schemas and ports, without I/O."""
