"""LangChain's chains and embeddings on the drop-in for openai's client (pip install langchain-openai).

python examples/langchain_drop_in.py
"""

import asyncio
import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from batchclient.openai import AsyncOpenAI
from batchclient.simulator import EmbeddedServer


async def main(base_url: str, model: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none", preset="throughput") as shared:
        # LangChain's model takes the client for `ainvoke` and `abatch`; the chain stays as it was.
        chat = ChatOpenAI(model=model, max_tokens=12, root_async_client=shared, async_client=shared.chat.completions)
        chain = ChatPromptTemplate.from_template("Define {word} in five words.") | chat
        definitions = await chain.abatch([{"word": f"word {number}"} for number in range(200)])

        # Without `check_embedding_ctx_length=False` LangChain sends tokens of OpenAI's own tokenizer.
        embeddings = OpenAIEmbeddings(model=model, async_client=shared.embeddings, check_embedding_ctx_length=False)
        vectors = await asyncio.gather(*[embeddings.aembed_query(each.content) for each in definitions])

        counts = shared.statistics()
    print(f"{len(definitions)} definitions and {len(vectors)} vectors; {counts.shared} of {counts.calls} calls shared")


if __name__ == "__main__":
    with EmbeddedServer() as server:
        asyncio.run(
            main(
                os.environ.get("BATCHCLIENT_BASE_URL", server.base_url),
                os.environ.get("BATCHCLIENT_MODEL", server.model),
            )
        )
