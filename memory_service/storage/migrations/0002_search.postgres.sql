-- min_reader: 1
-- Full text and nearest vectors for owners that are too large to be scored whole. A word is `<owner id>:<stem>`, so that
-- the full-text index is entered by owner.

CREATE INDEX turns_words ON {schema}.turns USING gin
    (string_to_array(owner_id::text || ':' || replace(terms, ' ', ' ' || owner_id::text || ':'), ' '));
CREATE INDEX facts_words ON {schema}.facts USING gin
    (string_to_array(owner_id::text || ':' || replace(terms, ' ', ' ' || owner_id::text || ':'), ' '));

DO $vectors$
BEGIN
    -- Above 2,000 dimensions pgvector has no index over `vector`; an owner is then read by its key and sorted.
    IF {dimension} <= 2000 THEN
        CREATE INDEX turns_vector ON {schema}.turns USING hnsw (vector {vectors}.vector_cosine_ops);
        CREATE INDEX facts_vector ON {schema}.facts USING hnsw (vector {vectors}.vector_cosine_ops);
    END IF;
END
$vectors$;

-- ANALYZE would copy samples of what was said into the catalogue, where no purge reaches them.
DO $statistics$
DECLARE
    found RECORD;
BEGIN
    FOR found IN
        SELECT c.relname, a.attname
        FROM pg_catalog.pg_attribute AS a
        JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
        WHERE n.nspname = '{schema_name}' AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
            AND t.typname IN ('text', 'vector')
            AND a.attname NOT IN ('status', 'kind', 'state', 'scope', 'event', 'route')
    LOOP
        EXECUTE format(
            'ALTER TABLE {schema}.%I ALTER COLUMN %I SET STATISTICS 0', found.relname, found.attname
        );
    END LOOP;
    FOR found IN
        SELECT c.relname
        FROM pg_catalog.pg_index AS i
        JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema_name}' AND i.indkey::text = '0' AND i.indexprs IS NOT NULL
    LOOP
        EXECUTE format('ALTER INDEX {schema}.%I ALTER COLUMN 1 SET STATISTICS 0', found.relname);
    END LOOP;
END
$statistics$;
