"""One protection of the code, and the test that must fail without it."""

from dataclasses import dataclass

from tests.mutants.tree_edit import edit

__all__ = ["Protection"]


@dataclass(frozen=True)
class Protection:
    """One protection.

    Args:
        name: what it keeps.
        module: the module's dotted name.
        where: the qualified name of the function, class or constant; "" for the whole module.
        there: the protection, an expression or statements that ``where`` has once. Trees are
            compared, so their layout makes no difference.
        gone: what stands there without it.
        test: what must fail then, as pytest names it.
    """

    name: str
    module: str
    where: str
    there: str
    gone: str
    test: str

    def path(self, root):
        """The module's file.

        Args:
            root: the folder that has ``src``.

        Raises:
            ValueError: there is no such module.
        """
        stem = root / "src" / self.module.replace(".", "/")
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
        raise ValueError(f"there is no module {self.module}")

    def take_out(self, source):
        """The module's text without it.

        Raises:
            ValueError: it is not there, or more than once.
        """
        try:
            return edit(source, self.where, self.there, self.gone)
        except ValueError as error:
            raise ValueError(f"{self.module}: {error}") from None
