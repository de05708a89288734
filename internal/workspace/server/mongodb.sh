# ask puts a question to a database.
ask() { as sqlite3 -batch -safe "$1" "$2"; }

# mend takes back what FerretDB was at when it was killed: it makes collections and indexes,
# and removes them, in several steps, and fails for ever at what it finds half done. Nobody
# was told that any of it is there.
mend() {
	ask "$1" "
		BEGIN;
		DELETE FROM _ferretdb_collections WHERE coalesce(json_array_length(settings, '\$.indexes'), 0) = 0;
		UPDATE _ferretdb_collections SET settings = json_set(settings, '\$.indexes', (SELECT json_group_array(json(i.value))
			FROM json_each(settings, '\$.indexes') i JOIN sqlite_master m ON m.type = 'index' AND m.name = table_name || '_' || json_extract(i.value, '\$.name')));
		COMMIT;"
	ask "$1" "
		SELECT printf('DROP TABLE \"%w\";', name) FROM sqlite_master
			WHERE type = 'table' AND name <> '_ferretdb_collections' AND name NOT IN (SELECT table_name FROM _ferretdb_collections);
		SELECT printf('DROP INDEX IF EXISTS \"%w\";', name) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND name NOT IN (
			SELECT table_name || '_' || json_extract(i.value, '\$.name') FROM _ferretdb_collections, json_each(settings, '\$.indexes') i);" |
		as sqlite3 -batch -safe -bail "$1"
}

# shrink gives the room of removed documents back to the volume, where there is room for another copy of the others.
shrink() {
	for db in $data/server/*.sqlite; do
		[ -e "$db" ] || continue
		room=$(($(stat -f -c '%a*%S/1048576' $data)))
		worth=$(ask "$db" "SELECT freelist_count * page_size > 1048576 AND (page_count - freelist_count) * page_size / 1048576 * 2 + 4 < $room
			FROM pragma_page_count, pragma_freelist_count, pragma_page_size") || worth=0
		[ "$worth" != 1 ] || as env SQLITE_TMPDIR=$data/server sqlite3 -batch "$db" VACUUM || echo "$db: removed documents keep their room" >&2
	done
}

own
if [ -e $data/server/WiredTiger ]; then
	echo "The volume has data of mongod, which FerretDB cannot read. Add another mongodb service, and copy the documents with a client." >&2
	exit 1
fi
limit=
if full; then
	limit='&_pragma=max_page_count(1)' # a database does not grow beyond its present size
fi
as mkdir -p $data/server
for db in $data/server/*.sqlite; do
	[ -e "$db" ] || continue
	case $(ask "$db" "SELECT count(*) FROM sqlite_master WHERE name = '_ferretdb_collections'") in
	0) rm -f "$db" "$db-wal" "$db-shm" ;;
	1) mend "$db" || echo "$db: what is half done stays so" >&2 ;;
	esac
done
if [ -n "$limit" ]; then
	shrink
	if full; then
		echo "The volume is full, so databases do not grow. Delete documents, whose room others can take, or drop collections and restart the service." >&2
	else
		limit=
	fi
fi
. $run/settings
enter ferretdb --handler=sqlite --sqlite-url="file:$data/server/?_pragma=synchronous(full)&_pragma=journal_size_limit(4194304)$limit" --state-dir=/tmp --listen-addr=:27017 --test-enable-new-auth \
	--telemetry=disable --debug-addr=- --log-level=WARN --no-log-uuid
