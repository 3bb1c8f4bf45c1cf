"""Spawn N of me: ``aiocoll run`` and `aiocoll.launch`.

Rule: starting is fast, so a module here imports what it needs when it needs it; ending is thorough, so the processes
belong to a warden that outlives a killed runner.

options.py    the command line          plan.py       argv and environment of each rank
start.py      processes before loops    processes.py  pipes to the ranks, messages from the warden
orders.py     what ranks are told while they run
warden.py     the ranks' parent         supervise.py  store, attempts, restarts, deadline
job.py        one attempt               signals.py    what ends or wakes it
replace.py    processes in place of dead ranks
several.py    one runner among several  nodes.py      how they meet and agree;  coordinator.py: node 0's part
verdict.py    who failed first          chronicle.py  what is said of a job that goes on without its dead
console.py    what is shown             lines.py      whole lines
command.py    ``aiocoll run``           functions.py  ``aiocoll.launch``;  worker.py: its other end
"""
