# Who serves files reads them, and whoever works on them as root may write them.
chmod 0755 $data
chmod 0711 $run
resolver=$(sed -n 's/^nameserver *//p' /etc/resolv.conf | head -n 1)
case $resolver in
*:*) resolver="[$resolver]" ;;
esac
echo "${resolver:+resolver $resolver valid=5s ipv6=off;}" > $run/resolver.conf
exec nginx -c $run/settings -g 'daemon off;'
