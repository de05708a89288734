"""Fills a database with numbered documents of 100 kB, counts them or removes them: fill.py URL ACT FROM MOST."""
import os
import sys

import pymongo

url, act, start, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
filler = pymongo.MongoClient(url, retryWrites=False).get_default_database().filler
if act == 'fill':
    for i in range(start, start + most):
        try:
            filler.insert_one({'_id': i, 'text': os.urandom(50_000).hex()})
        except pymongo.errors.PyMongoError as e:
            print(e)
            break
        print(i, flush=True)
elif act == 'count':
    print(sum(len(d['text']) == 100_000 for d in filler.find()))
elif act == 'empty':
    filler.delete_many({'_id': {'$gte': start}})
    print(0)
