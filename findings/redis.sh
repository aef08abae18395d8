# Sourced by findings about libraries on Redis: Redis 7.0.15 of Debian 12 below $folder, at the socket $folder/redis.sock.
#
# Debian's packages are unpacked, not installed. The server ends with the script.
(
  mkdir "$folder/redis"
  cd "$folder/redis"
  chmod 755 "$folder" .
  apt-get download -qq redis-tools redis-server libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson 2>/dev/null
  for package in *.deb; do dpkg -x "$package" .; done
)
libraries=$(find "$folder/redis" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
LD_LIBRARY_PATH=$libraries "$folder/redis/usr/bin/redis-server" --port 0 --unixsocket "$folder/redis.sock" --save '' \
  >"$folder/redis.log" &
server=$!
trap 'kill $server; rm -rf "$folder"' EXIT
for _ in $(seq 300); do [ -S "$folder/redis.sock" ] && break; sleep 0.1; done
LD_LIBRARY_PATH=$libraries "$folder/redis/usr/bin/redis-server" --version | cut -d' ' -f1-3
