import sys
from tests.simulation.run import run_seed, World
o=run_seed(int(sys.argv[1]))
for l in o.transcript[-int(sys.argv[2]):]: print(*l)
print(o.wrong)
