# Creates the database at the first start, as the pod's user, on a read-only root. An interrupted start
# is repeated: the directory gets its name when it is complete.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  rm -rf "$PGDATA.new"
  printf %s "$POSTGRES_PASSWORD" >/tmp/password
  initdb -D "$PGDATA.new" -U "$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --auth-local=reject -E UTF8 --locale=C
  rm /tmp/password
  echo 'host all all all scram-sha-256' >>"$PGDATA.new/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_USER" | postgres --single -D "$PGDATA.new" postgres
  mv "$PGDATA.new" "$PGDATA"
fi
chmod 700 "$PGDATA"
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp
