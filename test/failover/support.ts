/** One choice of a stream, put together. */
interface WholeChoice {
  text: string;
  reasoning: string;
  /** A call begins with `+` where the client was told an id for it. */
  calls: string[];
  finish_reason: string | null;
  roles: number;
  ids: number[];
  /** Log probabilities, one a token. */
  logprobs: number[];
}

/** A whole stream, and nothing of how it was cut into chunks. */
export interface WholeStream {
  choices: WholeChoice[];
  usage: unknown;
  /** Ids and times of creation that its chunks had. */
  identities: number;
  /** `data: [DONE]`, where it came. */
  ending: string | undefined;
  error: string | undefined;
}

export function wholeStream(raw: string): WholeStream {
  const events = raw.split('\n\n').filter((event) => event !== '' && !event.startsWith(':'));
  const ending = events.at(-1) === 'data: [DONE]' ? events.pop() : undefined;
  const chunks = events.map((event) => JSON.parse(event.slice('data: '.length)));
  const choices: WholeChoice[] = [];
  for (const { index, delta = {}, ...choice } of chunks.flatMap((chunk) => chunk.choices ?? [])) {
    const empty = {
      text: '',
      reasoning: '',
      calls: [],
      finish_reason: null,
      roles: 0,
      ids: [],
      logprobs: [],
    };
    choices[index] ??= empty;
    const said = choices[index];
    said.text += choice.text ?? delta.content ?? '';
    said.reasoning += delta.reasoning ?? delta.reasoning_content ?? '';
    for (const call of delta.tool_calls ?? [])
      said.calls[call.index] =
        `${said.calls[call.index] ?? ''}${call.id ? '+' : ''}${call.function.name ?? ''}${call.function.arguments ?? ''}`;
    if (delta.role) said.roles++;
    said.finish_reason ??= choice.finish_reason;
    said.ids.push(...(choice.token_ids ?? []));
    const ofChat = choice.logprobs?.content?.map(({ logprob }: { logprob: number }) => logprob);
    said.logprobs.push(...(ofChat ?? choice.logprobs?.token_logprobs ?? []));
  }
  return {
    choices,
    usage: chunks.findLast((chunk) => chunk.usage)?.usage,
    identities: new Set(chunks.filter(({ id }) => id).map(({ id, created }) => `${id} ${created}`)).size,
    ending,
    error: chunks.at(-1)?.error?.message,
  };
}
