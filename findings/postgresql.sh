# Sourced by findings about libraries on PostgreSQL: the installed server 15, with its data in $folder/data.
#
# PostgreSQL refuses to run as root, so root starts it as the user postgres. The server ends with the script.
binaries=$(ls -d /usr/lib/postgresql/15/bin)
as_owner=
if [ "$(id -u)" = 0 ]; then
  chown postgres "$folder"
  as_owner="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
cd "$folder"
$as_owner "$binaries/initdb" -D "$folder/data" -A trust -U postgres >"$folder/initdb.log"
$as_owner "$binaries/postgres" -D "$folder/data" -c listen_addresses= -c unix_socket_directories="$folder" \
  2>"$folder/postgres.log" &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$folder"' EXIT
for _ in $(seq 300); do [ -S "$folder/.s.PGSQL.5432" ] && break; sleep 0.1; done
"$binaries/postgres" --version
