from tests.chat.house import *

async def test_plain(house):
    async with house.connect() as c:
        await c.client.send("hello")
        r = await c.rest()
        assert r == ["Hello", ", ", "world", "."]
        assert c.client.close_code == 1000

async def test_session(house):
    async with house.session() as c:
        f = await c.answer("a")
        print(f)
        await c.send("ping")
        await c.frame("pong")
        f = await c.answer("b")
        print(f)
        print(house.engine.calls[1].messages)
