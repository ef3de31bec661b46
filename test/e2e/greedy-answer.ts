import type OpenAI from 'openai';

/**
 * The text of a long greedy answer, from which no end of the model's own takes anything.
 * @param begun called once, with its first words; waited for when the answer has ended
 */
export async function greedyAnswer(
  client: OpenAI,
  { model, max_tokens }: { model: string; max_tokens: number },
  begun: () => Promise<void> = async () => undefined,
): Promise<string> {
  const chunks = await client.completions.create({
    model,
    prompt: 'Stages of a pipeline',
    max_tokens,
    temperature: 0,
    stream: true,
    ...{ ignore_eos: true },
  });
  let text = '';
  let told: Promise<void> | undefined;
  for await (const { choices } of chunks) {
    text += choices[0]?.text ?? '';
    if (text !== '') told ??= begun();
  }
  await told;
  return text;
}
