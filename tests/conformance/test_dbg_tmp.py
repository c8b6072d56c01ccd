from tests.conformance.conftest import *
from tests.conformance.test_purge import *


async def test_dbg(backends, tmp_path):
    async with backends.external(tmp_path) as config:
        store = Store(config)
        await store.open()
        await fill_both(store)
        erasure = SessionErasure(session_of().agent, "", "s1")
        r = await store.storage.transact(
            lambda tx: tx.erasing.erase(erasure, receipt_id="r", asked_by=None, now=tx.now())
        )
        print(r.erased)
        print(await store.storage.purge())
        names = await asyncio.to_thread(holding, store, [vector_bytes(vector(1000))])
        print(names)
        names |= await asyncio.to_thread(holding, store, needles())
        with psycopg.connect(str(config.dsn)) as c:
            for n in names:
                print(
                    n,
                    c.execute(
                        "select relname,relkind from pg_class where relfilenode=%s", [int(n.split(".")[0])]
                    ).fetchall(),
                )
            print(
                c.execute("select count(*) from memplane_test.facts").fetchall(),
                c.execute("select count(*) from memplane_test.turns").fetchall(),
            )
            print(
                c.execute("select relname,n_tup_del,n_dead_tup from pg_stat_user_tables where n_tup_del>0").fetchall()
            )
        await store.close()
