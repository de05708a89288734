own
as mkdir -p $data/server
chmod 0711 $run
install -o redis -g redis -m 0400 $run/settings $run/redis.conf
enter redis-server $run/redis.conf
