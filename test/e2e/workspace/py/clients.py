"""Writes to and reads from the databases of a workspace, whose addresses are in its argument,
with the clients that programs in Python use."""
import json
import sys

import pymongo
import redis
from sqlalchemy import create_engine, select, String
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

at = json.loads(sys.argv[1])


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "py"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


for url in at["postgres"].replace("postgresql://", "postgresql+psycopg://"), at["mysql"].replace("mysql://", "mysql+pymysql://"):
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Note(name="it's"), Note(name="ü")])
        session.commit()
        session.add(Note(name="gone"))
        session.rollback()
        assert [n.name for n in session.scalars(select(Note).order_by(Note.id))] == ["it's", "ü"], url
    engine.dispose()

cache = redis.from_url(at["redis"], decode_responses=True)
with cache.pipeline() as p:
    p.set("py", "ü").incr("py:n").execute()
assert cache.get("py") == "ü"
assert cache.get("js") == "ü"

mongo = pymongo.MongoClient(at["mongodb"])
notes = mongo.get_default_database().py
notes.insert_many([{"name": "a", "n": 1}, {"name": "ü", "n": 2, "tags": ["x"]}])
notes.create_index("name", unique=True)
try:
    notes.insert_one({"name": "a"})
except pymongo.errors.DuplicateKeyError:
    pass
else:
    raise AssertionError("a name is there twice")
assert notes.find_one({"tags": "x"})["name"] == "ü"
assert notes.count_documents({"n": {"$gt": 0}}) == 2
assert mongo.get_default_database().js.count_documents({}) == 2
