"""What an object keeps alive: for tests that something forgets, whatever it is made of.

An object is followed through what the garbage collector knows of it, so that no test names a private field.
"""

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

__all__ = ["held", "held_bytes", "reachable"]

_NOT_ITS_OWN = (type, ModuleType, FunctionType, BuiltinFunctionType)


def held(root, kind):
    """How many different objects of a type can be reached from an object, itself left out."""
    return sum(isinstance(each, kind) for each in reachable(root))


def held_bytes(root):
    """Bytes of an object and of all that can be reached from it."""
    return sys.getsizeof(root) + sum(map(sys.getsizeof, reachable(root)))


def reachable(root):
    """The objects that can be reached from an object, itself left out."""
    seen, found, waiting = {id(root)}, [], [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, MethodType):
            # Of a bound method the object alone: the function leads to everything that its module has.
            following = [each.__self__]
        else:
            following = gc.get_referents(each)
        for one in following:
            if id(one) not in seen and not isinstance(one, _NOT_ITS_OWN):
                seen.add(id(one))
                found.append(one)
                waiting.append(one)
    return found
