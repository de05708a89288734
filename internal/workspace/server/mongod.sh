# refuse ends a start that cannot succeed.
refuse() {
	echo "$1" >&2
	exit 1
}

id -u "$user" > /dev/null 2>&1 || refuse "The template has no user $user. Write 'user: $user' into its definition, and build it again."
command -v mongod > /dev/null || refuse "The template has no program mongod. Install it in the template, and build it again."
own
for other in $data/server/*.sqlite; do
	[ ! -e "$other" ] || refuse "The volume has data of FerretDB, which mongod cannot read. Add another mongodb service, and copy the documents with a client."
done
rm -f $run/full
if full 64; then
	: > $run/full
	echo "The volume is full, so documents can be read and removed only. Drop collections, and restart the service." >&2
fi
# A start repeats all that has been written since the last checkpoint, which takes as much room again.
case $(mongod --version) in
*"db version v3."*) set -- --wiredTigerEngineConfigString='log=(file_max=8MB),checkpoint=(wait=60,log_size=16MB)' ;;
*) set -- --wiredTigerEngineConfigString='log=(file_max=8MB)' --syncdelay 10 ;;
esac
set -- "$@" --nounixsocket --setParameter diagnosticDataCollectionEnabled=false --auth
if [ ! -e $data/server ]; then
	# A new server gets its user while nothing but this machine reaches it. A start that was
	# cut off begins anew: nobody has written anything yet.
	rm -rf $data/new $run/made
	as mkdir $data/new
	setpriv --reuid="$user" --regid="$user" --init-groups -- mongod "$@" --dbpath $data/new --bind_ip 127.0.0.1 --port 27018 &
	server=$!
	until [ -e $run/made ]; do
		kill -0 $server 2> /dev/null || refuse "mongod has ended before it had a user."
		sleep 0.05
	done
	kill $server
	wait $server || refuse "mongod did not end cleanly."
	sync -f $data/new
	mv -T $data/new $data/server
	sync $data
fi
enter mongod "$@" --dbpath $data/server --bind_ip_all --port 27017 --setParameter enableLocalhostAuthBypass=false
