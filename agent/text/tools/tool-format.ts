import { HpcserveError } from '../../../spec/errors/error.ts';
import { type AddForm, either, type GrammarBuilder, literal } from '../grammar/gbnf.ts';
import { addJsonRules } from '../grammar/json-rules.ts';
import { SchemaCompiler } from '../grammar/schema-compiler.ts';
import { FunctionCallGrammar, textsOfValues } from './function-call-grammar.ts';
import { functionBegin } from './function-call-reader.ts';
import { markedCallMarks } from './marked-call-reader.ts';
import type { ToolFunction } from './tool-function.ts';

/** How a family of models writes a call of a tool. */
export interface ToolFormat {
  name: 'hermes' | 'qwen3-coder' | 'llama3' | 'mistral' | 'mistral-marked';
  /** Text before a call; of control tokens too, which are written out for this. */
  open: string;
  /** Further text of a call that may be a control token, where there is any. */
  marks?: readonly string[];
  /** How a call begins behind `open`, where that is no brace and no name. */
  begin?: string;
  /** Text after a call, where there is one. */
  close?: string;
  /** A call may stand alone, without `open`, if it is the whole answer. */
  bare: boolean;
  /** Name of the member that holds the arguments. */
  argumentsKey: 'arguments' | 'parameters';
  /** Whether several calls can follow each other. */
  several: boolean;
  /** Whether each call has an id of the model's own. */
  ids?: boolean;
}

const hermes: ToolFormat = {
  name: 'hermes',
  open: '<tool_call>',
  close: '</tool_call>',
  bare: false,
  argumentsKey: 'arguments',
  several: true,
};
const qwen3Coder: ToolFormat = { ...hermes, name: 'qwen3-coder', begin: functionBegin };
const llama3: ToolFormat = {
  name: 'llama3',
  open: '<|python_tag|>',
  bare: true,
  argumentsKey: 'parameters',
  several: false,
};
const mistral: ToolFormat = {
  name: 'mistral',
  open: '[TOOL_CALLS]',
  bare: false,
  argumentsKey: 'arguments',
  several: true,
};
const mistralMarked: ToolFormat = {
  name: 'mistral-marked',
  open: '[TOOL_CALLS]',
  marks: markedCallMarks,
  bare: false,
  argumentsKey: 'arguments',
  several: true,
};
const mistralWithIds: ToolFormat = { ...mistralMarked, ids: true };

/**
 * The format that a chat template tells its model to use; undefined where it has no tools, or calls in another form.
 * Hermes: NousResearch, Qwen 2.5 and 3; Qwen3-Coder: `<function=name>` in the same mark; Llama 3: Meta's JSON tool
 * calling; Mistral: `[TOOL_CALLS]` before a list, or, from version 11 of its tokenizer on, before the name of each
 * call.
 */
export function toolFormatOf(template: string): ToolFormat | undefined {
  if (!/\btools\b/.test(template)) return undefined;
  if (template.includes('<tool_call>')) return template.includes(functionBegin) ? qwen3Coder : hermes;
  if (template.includes('[TOOL_CALLS]')) {
    if (!template.includes('[ARGS]')) return mistral;
    return template.includes('[CALL_ID]') ? mistralWithIds : mistralMarked;
  }
  if (template.includes('<|python_tag|>') || template.includes('"parameters"')) return llama3;
  return undefined;
}

/**
 * Calls of these tools, with valid arguments.
 * @param parallel whether more than one call may be made
 * @param warnings takes what of schemas that are not strict is left out
 * @throws when it is added: HpcserveError E_REQUEST_SCHEMA where a tool's parameters cannot be expressed
 */
export function toolCalls(
  format: ToolFormat,
  tools: readonly ToolFunction[],
  parallel: boolean,
  warnings: string[],
): AddForm {
  if (tools.length === 0)
    throw new HpcserveError('E_REQUEST_INVALID', { what: 'a tool must be called, but `tools` is empty' });
  return (builder) => addCalls(builder, format, tools, parallel && format.several, warnings);
}

function addCalls(
  builder: GrammarBuilder,
  format: ToolFormat,
  tools: readonly ToolFunction[],
  several: boolean,
  warnings: string[],
): string {
  const rules = addJsonRules(builder);
  const text = format.name === 'qwen3-coder' ? textsOfValues(builder) : '';
  const calls = tools.map((tool) => {
    const leave = tool.strict ? undefined : warnings;
    if (format.name === 'qwen3-coder')
      return builder.add('call', new FunctionCallGrammar(builder, rules, text, tool, leave).compile());
    const parameters = new SchemaCompiler(builder, rules, tool.parameters, tool.path, leave);
    if (format.name === 'mistral-marked') {
      const id = format.ids === true ? '"[CALL_ID]" [a-zA-Z0-9]{9} ' : '';
      return builder.add(
        'call',
        `${literal(`[TOOL_CALLS]${tool.name}`)} ${id}"[ARGS]" ${parameters.compile()}`,
      );
    }
    const head = literal(`{"name": ${JSON.stringify(tool.name)}, ${JSON.stringify(format.argumentsKey)}: `);
    return builder.add('call', `${head} ${parameters.compile()} "}"`);
  });
  const call = builder.add('calls', either(calls));
  switch (format.name) {
    case 'hermes':
    case 'qwen3-coder': {
      const one = builder.add('tool-call', `"<tool_call>\\n" ${call} "\\n</tool_call>"`);
      return several ? `${one} ("\\n" ${one})*` : one;
    }
    case 'mistral':
      return several ? `"[TOOL_CALLS][" ${call} (", " ${call})* "]"` : `"[TOOL_CALLS][" ${call} "]"`;
    case 'mistral-marked':
      return several ? `${call}+` : call;
    case 'llama3':
      return call;
  }
}
