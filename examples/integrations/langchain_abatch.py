"""A LangChain chain and its embeddings over BatchTransport.

python examples/integrations/langchain_abatch.py [BASE_URL MODEL]
"""

import asyncio

import httpx2
from _server import server
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from batchclient.integrations.httpx2 import BatchTransport


async def main(base_url: str, model: str) -> None:
    transport = BatchTransport(preset="throughput")
    async with httpx2.AsyncClient(transport=transport, timeout=600) as http:
        common = {"model": model, "base_url": base_url, "api_key": "none", "http_async_client": http}
        prompt = ChatPromptTemplate.from_template("Define {word} in five words.")
        chain = prompt | ChatOpenAI(**common, max_tokens=12)
        definitions = await chain.abatch([{"word": f"word {i}"} for i in range(200)])
        requests = transport.clients[0].statistics().batches
        print(f"{len(definitions)} definitions in {requests} requests")
        # By default LangChain sends token ids of OpenAI's tokenizer.
        embeddings = OpenAIEmbeddings(**common, check_embedding_ctx_length=False)
        vectors = await asyncio.gather(*[embeddings.aembed_query(each.content) for each in definitions])
        print(f"{len(vectors)} vectors in {transport.clients[0].statistics().batches - requests} requests")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
