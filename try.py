import sys,time
from collections import Counter
from tests.simulation.run import run_seed
a,b=int(sys.argv[1]),int(sys.argv[2])
t=time.perf_counter(); bad=Counter(); n=0; ex={}
for s in range(a,b):
    o=run_seed(s); n+=1
    if o.wrong:
        k=o.wrong[0][:150]; import re; k=re.sub(r'\d+','#',k); bad[k]+=1; ex.setdefault(k,(s,o.wrong[:3]))
print(n,'seeds',(time.perf_counter()-t)/n*1e3,'ms each', sum(bad.values()),'bad')
for k,c in bad.most_common(15): print(c,ex[k])
