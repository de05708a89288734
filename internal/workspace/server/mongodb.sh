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

own
if [ -e $data/server/WiredTiger ]; then
	echo "The volume has data of mongod, which FerretDB cannot read. Add another mongodb service, and copy the documents with a client." >&2
	exit 1
fi
as mkdir -p $data/server
for db in $data/server/*.sqlite; do
	[ -e "$db" ] || continue
	case $(ask "$db" "SELECT count(*) FROM sqlite_master WHERE name = '_ferretdb_collections'") in
	0) rm -f "$db" "$db-wal" "$db-shm" ;;
	1) mend "$db" || echo "$db: what is half done stays so" >&2 ;;
	esac
done
. $run/settings
enter ferretdb --handler=sqlite --sqlite-url="file:$data/server/?_pragma=synchronous(full)" --state-dir=/tmp --listen-addr=:27017 --test-enable-new-auth \
	--telemetry=disable --debug-addr=- --log-level=WARN --no-log-uuid
