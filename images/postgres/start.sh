#!/bin/sh
# Makes the database cluster in PGDATA when there is none, then becomes postgres.
set -eu
: "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD}"
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}
if ! [ -s "$PGDATA/PG_VERSION" ]; then
  # Made beside PGDATA and moved, so that a start that was interrupted is made again and never half used.
  unfinished=$PGDATA.unfinished
  mkdir -p "$(dirname "$PGDATA")"
  rm -rf "$unfinished"
  secret=$(mktemp)
  printf '%s\n' "$POSTGRES_PASSWORD" >"$secret"
  initdb --pgdata="$unfinished" --username="$user" --pwfile="$secret" --auth-local=trust --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C --no-sync
  rm -f "$secret"
  echo 'host all all all scram-sha-256' >>"$unfinished/pg_hba.conf"
  if [ "$database" != postgres ]; then
    echo "CREATE DATABASE \"$database\"" | postgres --single -D "$unfinished" postgres >/dev/null
  fi
  rm -rf "$PGDATA"
  mv "$unfinished" "$PGDATA"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
