"""One allocator a file."""

from typing import Annotated

from pydantic import Field

from sim.kv.allocators.arena import Arena
from sim.kv.allocators.contiguous import Contiguous
from sim.kv.allocators.grow import Grow
from sim.kv.allocators.paged import Paged
from sim.kv.allocators.size_class import SizeClassConfig

AnyAllocator = Annotated[Paged | Contiguous | Arena | SizeClassConfig | Grow, Field(discriminator="name")]
